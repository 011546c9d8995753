"""Operations of HTTP interfaces as tools, from their OpenAPI documents."""
