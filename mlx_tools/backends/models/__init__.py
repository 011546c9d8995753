"""Models on this machine: the embedded one, the Hugging Face cache, and what their files say."""
