"""The .proto files of the services, and the tools that generate code from them and check that it is up to date."""
