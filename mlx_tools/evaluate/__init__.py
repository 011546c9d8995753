"""Measures how well models call tools: the Berkeley leaderboard's questions, and whole runs."""
