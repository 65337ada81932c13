"""Which rights a user is told to ask for, and which ones of a job's account are too many."""

import pytest
import yaml

from ctr_pipeline.apps.cluster.rights import (
    COMMANDS,
    Right,
    describe_superfluous,
    missing_rights,
    render_role,
    superfluous_rights,
)
from ctr_pipeline.distributed.launchers.kubernetes.api import ApiError


class Granting:
    """A namespace where the user has some rights."""

    namespace = "ads"

    def __init__(self, granted):
        self.granted = granted

    def may(self, verb, group, resource):
        return Right(group, resource, verb) in self.granted

    def rules_of(self, _account):
        raise ApiError(403, "cannot impersonate")


def test_the_role_that_is_asked_for_grants_what_is_missing():
    needed = [right for rights in COMMANDS.values() for right in rights]
    api = Granting({Right("", "pods", "get")})
    missing = missing_rights(api, needed)
    role, _ = yaml.safe_load_all(render_role(missing, user="alice", namespace="ads"))
    api.granted |= {
        Right(group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert missing_rights(api, needed) == []
    assert Right("", "pods", "get") not in missing
    # No right reaches beyond the namespace, and none is a wildcard.
    assert role["kind"] == "Role"
    assert "*" not in str(role)


@pytest.mark.parametrize(
    ("user", "subject"),
    [
        ("Ada@example.com", {"kind": "User", "name": "Ada@example.com"}),
        (
            "system:serviceaccount:ci:deployer",
            {"kind": "ServiceAccount", "name": "deployer", "namespace": "ci"},
        ),
    ],
)
def test_the_role_is_bound_to_the_user(user, subject):
    rendered = render_role([Right("", "pods", "get")], user=user, namespace="n")
    _, binding = yaml.safe_load_all(rendered)
    (found,) = binding["subjects"]
    assert subject.items() <= found.items()


def rule(group, resource, *verbs):
    return {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}


@pytest.mark.parametrize(
    ("rules", "found"),
    [
        ([rule("authorization.k8s.io", "selfsubjectaccessreviews", "create")], []),
        ([rule("", "pods", "create", "list")], []),
        ([rule("", "pods", "list", "patch"), rule("", "pods/exec", "create")], None),
        ([rule("*", "*", "*")], ["* *"]),
        (
            [rule("", "secrets", "list"), rule("", "secrets", "get"), rule("apps", "pods", "get")],
            ["get pods", "get, list secrets"],
        ),
    ],
)
def test_superfluous_rights_are_those_a_job_s_account_has_no_use_for(rules, found):
    expected = ["patch pods", "create pods/exec"] if found is None else found
    assert describe_superfluous(rules) == expected


def test_superfluous_rights_are_unknown_unless_one_may_act_as_the_account():
    assert superfluous_rights(Granting(set()), "clicks") is None
