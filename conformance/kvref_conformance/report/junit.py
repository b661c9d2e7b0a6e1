"""The result as JUnit XML. There is a suite for each area of laws, and a case for each row."""

from __future__ import annotations

from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from kvref_conformance.documents.results import Result, Row, Status
from kvref_conformance.report.narrate import narrate, remark
from kvref_conformance.report.text import visible, visible_lines

_LONGEST_NAME = 200


def junit(result: Result) -> bytes:
    """The XML document, encoded.

    A broken robustness law is a failure only with `--strict`.
    """
    counted = {id(row) for row in result.failing}
    areas: dict[str, list[Element]] = {}
    for row in result.rows:
        area = row.law.partition(".")[0]
        areas.setdefault(area, []).append(_case(row, id(row) in counted))
    root = Element("testsuites", name="kvref", time=f"{result.elapsed_seconds:.3f}")
    for area, cases in areas.items():
        suite = SubElement(root, "testsuite", name=visible(area, _LONGEST_NAME))
        suite.extend(cases)
        _count(suite)
    for kind in ("tests", "failures", "errors", "skipped"):
        root.set(kind, str(sum(int(suite.get(kind, "0")) for suite in root)))
    ElementTree.indent(root)
    return bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def _case(row: Row, counts: bool) -> Element:
    subject = visible(row.subject, _LONGEST_NAME)
    facet = visible(row.facet, _LONGEST_NAME)
    case = Element(
        "testcase",
        classname=visible(row.law, _LONGEST_NAME),
        name=f"{subject}: {facet}" if facet else subject,
        time=f"{row.seconds:.3f}",
    )
    message = visible(row.message or row.observed)
    match row.status:
        case Status.BROKEN if counts:
            SubElement(case, "failure", type=row.level.value, message=message).text = _story(row)
        case Status.STALE:
            SubElement(case, "failure", type=row.status.value, message=message)
        case Status.BROKEN:
            SubElement(
                case, "system-out"
            ).text = f"broken, but a {row.level} law: it fails the run only with --strict\n{_story(row)}"
        case Status.UNCONFIRMED | Status.INCOMPLETE:
            SubElement(case, "error", type=row.status.value, message=message).text = _story(row)
        case Status.KNOWN | Status.INHERITED | Status.DECLARED_GAP | Status.NOT_APPLICABLE:
            cause = f" ({row.cause.severity}, {row.cause.id})" if row.cause else ""
            SubElement(case, "skipped", message=f"{row.status}{cause}: {message}")
    return case


def _story(row: Row) -> str:
    parts = [("expected", row.expected), ("observed", row.observed), ("remark", remark(row))]
    lines = [f"{label}: {visible_lines(text)}" for label, text in parts if text]
    if row.trace is not None:
        lines += [visible(line) for line in narrate(row.trace["runs"])]
    return "\n".join(lines)


def _count(suite: Element) -> None:
    suite.set("tests", str(len(suite)))
    for kind, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(kind, str(len(suite.findall(f"testcase/{tag}"))))
