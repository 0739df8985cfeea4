"""What the operator is given to look after: many deployments, and nodes that kwok plays."""
