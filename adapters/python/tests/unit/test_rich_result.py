"""What code showed, as Python sees it."""

from __future__ import annotations

from stepbox import ExecutionResult, RichResult
from stepbox.images import figures

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 9


def test_each_kind_has_a_word_and_what_is_not_there_is_none():
    shown = RichResult({"text/plain": b"t\xff", "text/html": b"<b>", "image/png": PNG, "application/json": b'{"a": 1}'})
    assert (shown.text, shown.html, shown.png, shown.json) == ("t\ufffd", "<b>", PNG, {"a": 1})
    assert (shown.svg, shown.jpeg, shown.markdown, shown.latex, RichResult({}).json, RichResult({}).text) == (
        *[None] * 5,
        "",
    )
    assert RichResult({"application/json": b"[" * 100_000}).json is None


def test_a_notebook_is_given_text_as_text_and_the_rest_in_base64():
    shown = RichResult({"text/plain": b"t", "image/svg+xml": b"<svg/>", "image/jpeg": b"jpg", "x/y+json": b"no json"})
    assert shown._repr_mimebundle_() == {"text/plain": "t", "image/svg+xml": "<svg/>", "image/jpeg": "anBn"}
    assert shown._repr_mimebundle_(include=["text/plain"]) == {"text/plain": "t"}
    assert "text/plain" not in shown._repr_mimebundle_(exclude=["text/plain"])


def test_pictures_that_were_shown_go_to_a_model_up_to_a_number():
    shown = [RichResult({"image/png": PNG}), RichResult({"image/png": b"no picture"}), RichResult({"image/png": PNG})]
    result = ExecutionResult(results=shown)
    assert [image.path for image in figures(result)] == ["figure 1", "figure 2"]
    assert len(figures(result, 1)) == 1
    assert figures(result, 0) == []
