"""The images and the compose file of deploy/, on a real engine: `make test-containers`."""
