"""A command of marless: `marless my_command`."""
