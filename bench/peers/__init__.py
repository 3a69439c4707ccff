"""Other systems on the same task: installed into their own environments, run by their own interpreters."""
