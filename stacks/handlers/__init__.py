"""Code of our Lambda functions: the standard library and boto3 only, one module per function."""
