"""Models on this machine.

The embedded one, the Hugging Face cache, and what their files say.
"""
