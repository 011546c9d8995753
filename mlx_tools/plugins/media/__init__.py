"""Pictures described, speech written down, texts translated."""
