"""What `make release` does: build, check, try, sign. Nothing is uploaded; that is for a person."""
