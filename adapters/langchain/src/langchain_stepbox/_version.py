"""The one version that engine, protocol and Python packages carry."""

__version__ = "0.1.0"
