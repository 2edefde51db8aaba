"""stepbox for LangChain and LangGraph: a tool that runs a model's code in Linux sandboxes.

from langchain.agents import create_agent
from langchain_stepbox import StepboxTool

agent = create_agent(model, tools=[StepboxTool(memory_mb=1024)])
"""

from langchain_stepbox._version import __version__
from langchain_stepbox.tool import RunCodeInput, StepboxTool

__all__ = ["RunCodeInput", "StepboxTool", "__version__"]
