"""Our own rules for templates, in the language of AWS CloudFormation Guard: `stacks/rules/*.guard`.

The CDK's validator evaluates them beside its own, so `cdk synth` fails for what breaks one.
"""

from pathlib import Path

import aws_cdk as cdk

RULES = Path(__file__).resolve().parent.parent / "stacks" / "rules"


def validator(*, rules: Path = RULES, own_rules_only: bool = False) -> cdk.CloudFormationValidatePlugin:
    """The CDK's validator with our rules; it takes the place of the one that the CDK adds by itself."""
    sources = [
        cdk.ValidationRuleSource(name=path.stem, content=path.read_text())
        for path in sorted(rules.glob("*.guard"))
    ]
    return cdk.CloudFormationValidatePlugin(guard_rules=sources, include_default_rules=not own_rules_only)
