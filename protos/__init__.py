"""The wire contracts, and the tools that keep the generated code fresh."""
