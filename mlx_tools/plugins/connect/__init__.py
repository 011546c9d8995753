"""The connection of agents and editors to a gateway: what stands in their files."""
