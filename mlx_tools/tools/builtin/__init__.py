"""The tools that come with the package, one file each. Their words stand in ``prompts/tools/``."""
