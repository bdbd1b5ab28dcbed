"""Object stores that speak S3: requests by boto3 or obstore, retries, multipart uploads, errors.

Imports `objectstore`'s interface, configuration and metrics. Used by its opening.
"""
