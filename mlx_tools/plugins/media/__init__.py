"""Tools to describe pictures, transcribe speech and translate texts."""
