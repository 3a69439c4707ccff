"""A launcher of marless: `marless up --launcher my_launcher`."""
