"""From resolved options and model facts to a Plan; pure arithmetic and tables, no cluster."""
