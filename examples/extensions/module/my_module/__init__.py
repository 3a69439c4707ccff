"""A module of torch as a net of marless: `model: {net: module/my_module}`."""
