"""Running programs: which ones, with which arguments, where found, and what confines them."""
