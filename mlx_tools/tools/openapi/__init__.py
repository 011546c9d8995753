"""Operations of HTTP interfaces as bound tools, from their OpenAPI documents."""
