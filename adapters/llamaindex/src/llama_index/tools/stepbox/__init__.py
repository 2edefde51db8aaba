"""stepbox for LlamaIndex: a tool spec that runs a model's code in Linux sandboxes."""

from llama_index.tools.stepbox._version import __version__
from llama_index.tools.stepbox.base import Blocks, NothingRanError, StepboxToolSpec

__all__ = ["Blocks", "NothingRanError", "StepboxToolSpec", "__version__"]
