"""The connection of agents and editors to a gateway: the content of their files."""
