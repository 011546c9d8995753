"""Backends for Anthropic's and Ollama's own interfaces."""
