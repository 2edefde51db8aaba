"""stepbox for the OpenAI API: a function tool that runs a model's code in Linux sandboxes.

from openai import OpenAI
from stepbox_openai import StepboxTools

client = OpenAI()
with StepboxTools(memory_mb=1024) as stepbox:
    conversation = [{"role": "user", "content": "Which day of 2024 was the warmest?"}]
    while True:
        response = client.responses.create(model=..., input=conversation, tools=[stepbox.responses_tool()])
        conversation += response.output
        replies = stepbox.handle_tool_calls(response.output)
        if not replies:
            break
        conversation += replies
"""

from stepbox_openai._version import __version__
from stepbox_openai.schema import RunCode
from stepbox_openai.tools import StepboxTools

__all__ = ["RunCode", "StepboxTools", "__version__"]
