"""The public names."""

import langchain_stepbox


def test_public_names_are_these() -> None:
    assert sorted(langchain_stepbox.__all__) == ["RunCodeInput", "StepboxTool", "__version__"]
