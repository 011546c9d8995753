"""The gateway: a text-only model behind the interfaces that clients and agents speak."""
