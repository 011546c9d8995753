"""The runs of golden_transcripts/: what is asked, what the tools are, and what a script says."""
