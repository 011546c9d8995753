"""The loop: a session says what is due, the driver does it, until an answer or a limit."""
