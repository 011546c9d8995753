"""Models behind Anthropic's and Ollama's own interfaces."""
