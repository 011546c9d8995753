"""Operations of an HTTP interface, as its OpenAPI document describes them, as bound tools."""
