"""The knowledge base: files of one's own, found by a question in plain words."""
