"""What a model reads: the reply to a step, and the description of the tool.

One renderer serves every adapter, so that a model meets the same words in every framework.
"""

from stepbox.text.description import tool_description
from stepbox.text.packages import host_packages
from stepbox.text.reply import MAX_CHARS, MAX_FILES, MIN_CHARS, render

__all__ = ["MAX_CHARS", "MAX_FILES", "MIN_CHARS", "host_packages", "render", "tool_description"]
