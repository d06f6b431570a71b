"""Everything that follows from the models and tables: CRDs, RBAC, the chart's values, reference pages.

schema.py      pydantic's JSON schema -> a structural schema
crd.py         the two CustomResourceDefinitions
rbac.py        rules from the table of kinds
values.py      the chart's values as a model, with its schema and its file
reference.py   docs/reference/
files.py       every generated file; write or check
"""

from controlplane.generate.files import check, write

__all__ = ["check", "write"]
