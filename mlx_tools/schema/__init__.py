"""JSON Schema: read once, validated, coerced, sampled, written as a grammar. Pure."""
