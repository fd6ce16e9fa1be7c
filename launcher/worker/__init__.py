"""One attempt at a frozen run, in a process. The only room that calls the application's work."""
