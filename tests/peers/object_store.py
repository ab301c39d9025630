"""Fills a store with objects, by Amazon's own library, and creates an access key; prints its ID and its secret."""

import json
import sys

import boto3
from botocore.config import Config


def client(service, key="setup", secret="setup"):
    return boto3.client(
        service,
        endpoint_url=sys.argv[1],
        region_name="us-east-1",
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        config=Config(s3={"addressing_style": "path"}),
    )


# Three actions, after which the store checks signatures and policies.
iam = client("iam")
iam.create_user(UserName="web")
policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
iam.put_user_policy(UserName="web", PolicyName="all", PolicyDocument=json.dumps(policy))
key = iam.create_access_key(UserName="web")["AccessKey"]

s3 = client("s3", key["AccessKeyId"], key["SecretAccessKey"])
s3.create_bucket(Bucket="content")
s3.put_object(
    Bucket="content",
    Key="site/index.html",
    Body=b"<p>home",
    ContentType="text/html; charset=utf-8",
    CacheControl="max-age=60",
)
for name in ["a b+c&d=e.txt", "ü/%41.txt", "ü/~(x)!*'$,;:@.txt"]:
    s3.put_object(Bucket="content", Key="site/" + name, Body=name.encode())
s3.put_object(Bucket="content", Key="site/large.bin", Body=bytes(range(256)) * 8192)
print(key["AccessKeyId"], key["SecretAccessKey"])
