"""Operations of HTTP interfaces as tools, as an OpenAPI document describes them."""
