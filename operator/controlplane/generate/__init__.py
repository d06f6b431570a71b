"""Everything that follows from the models and tables: CRDs, RBAC, the chart's schema, reference pages.

schema.py      pydantic's JSON schema -> a structural schema
crd.py         the two CustomResourceDefinitions
reference.py   docs/reference/api.md
values.py      the chart's values as a model
files.py       every generated file; write or check
"""
