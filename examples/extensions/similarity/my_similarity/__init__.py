"""A similarity of marless: `sharing: {similarity: {name: my_similarity}}`."""
