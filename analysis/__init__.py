"""What finished runs say: from run folders to paired statistics, tables, figures and a report."""
