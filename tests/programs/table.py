"""The table of docs/programs.md, from the driver's results and the launcher's own reports."""
