//! What the test of the documents finds, on documents made up here.

use serde_json::json;

use super::*;

fn data() -> Data {
    let mut data = Data::default();
    data.insert(
        "bench",
        json!({
            "rows": [
                { "program": "pipe", "variant": "agent", "ratio": 8.266, "part": 0.1234 },
                { "program": "pipe", "variant": "taskset", "ratio": 10.84 },
                { "program": "make", "variant": "agent", "ratio": 0.957, "part": -0.0001 },
                { "program": "make", "variant": "taskset", "ratio": 0.5, "note": null },
            ],
            "locks": 225_491.4,
        }),
    );
    data
}

fn problems(document: &str) -> Vec<String> {
    let rendered = render(document, &data());
    rendered.problems.iter().map(Problem::to_string).collect()
}

/// What a reference says.
fn figure(reference: &str) -> String {
    let document = render(&format!("0<!-- {reference} -->\n"), &data()).text;
    document.split("<!--").next().unwrap().to_owned()
}

#[test]
fn a_right_number_is_left_alone() {
    let document = "about\n8.27<!-- bench#/rows/0/ratio .2 --> times\n";
    let rendered = render(document, &data());
    assert_eq!(rendered.problems, []);
    assert_eq!(rendered.text, document);
    assert_eq!(rendered.checked, 1);
}

#[test]
fn a_wrong_number_is_found_and_put_right() {
    let document = "about\n**1.5<!-- bench#/rows/0/ratio .2 -->** times\n";
    assert_eq!(
        problems(document),
        ["2: the text says \"1.5\", the data say \"8.27\" (bench#/rows/0/ratio .2)"]
    );
    let right = "about\n**8.27<!-- bench#/rows/0/ratio .2 -->** times\n";
    assert_eq!(render(document, &data()).text, right);
}

#[test]
fn a_sign_belongs_to_the_number_where_it_is_wanted() {
    let wanted = |text: &str, reference: &str| {
        let document = format!("{text}<!-- bench#/rows/{reference} -->");
        let rendered = render(&document, &data());
        rendered.text.split("<!--").next().unwrap().to_owned()
    };
    assert_eq!(wanted("(-5", "0/part +.1%"), "(+12.3");
    assert_eq!(wanted("(-5", "0/part .1%"), "(12.3");
    assert_eq!(wanted("1-5", "0/part .1%"), "1-12.3");
    assert_eq!(wanted("(5", "0/part +.1%"), "(+12.3");
}

#[test]
fn a_missing_pointer_is_an_error_that_names_it() {
    assert_eq!(
        problems("1<!-- bench#/rows/0/rate .2 -->"),
        ["1: bench#/rows/0/rate: nothing is at \"rate\""]
    );
    assert_eq!(
        problems("1<!-- bench#/[variant=agent]/ratio max .2 -->"),
        ["1: bench#/[variant=agent]/ratio: nothing is at \"[variant=agent]\""]
    );
    assert_eq!(
        problems("1<!-- bank#/rows .2 -->"),
        ["1: docs/data has no bank.json"]
    );
}

#[test]
fn an_unknown_format_is_an_error() {
    for format in ["2", ".x", ".2!", "two", ".1/z"] {
        let text = problems(&format!("1<!-- bench#/rows/0/ratio {format} -->")).join("");
        assert!(text.contains(&format!("{format:?}: a format is")), "{text}");
    }
    let text = problems("8.266<!-- bench#/rows/0/ratio -->").join("");
    assert!(text.contains("needs a format"), "{text}");
}

#[test]
fn a_comment_that_touches_a_number_must_be_a_reference() {
    let text = problems("8.27<!-- bench /rows/0/ratio .2 -->").join("");
    assert!(text.contains("wanted: NAME#/path"), "{text}");
    assert_eq!(
        problems("words <!-- a remark --> and 3 <!-- another -->"),
        [""; 0]
    );
}

#[test]
fn code_between_fences_is_left_alone() {
    assert_eq!(problems("```\n1<!-- bench#/nothing .2 -->\n```\n"), [""; 0]);
}

#[test]
fn several_values_need_an_aggregate() {
    let text = problems("1<!-- bench#/rows/*/ratio .2 -->").join("");
    assert!(text.contains("4 values"), "{text}");
    assert_eq!(figure("bench#/rows/*/ratio min .1"), "0.5");
    assert_eq!(figure("bench#/rows/*/ratio max .1"), "10.8");
    assert_eq!(figure("bench#/rows/*/ratio median .2"), "4.61");
    assert_eq!(figure("bench#/rows/*/ratio sum .1"), "20.6");
    assert_eq!(figure("bench#/rows/*/ratio mean .2"), "5.14");
    assert_eq!(
        figure("bench#/rows/[variant=agent]/ratio geomean .2"),
        "2.81"
    );
    assert_eq!(figure("bench#/rows/[variant=agent&ratio<1] count"), "1");
    assert_eq!(
        figure("bench#/rows/[program=pipe;make&ratio>=0.957] count"),
        "3"
    );
    assert_eq!(figure("bench#/rows/[ratio>100] count"), "0");
}

#[test]
fn two_values_are_compared() {
    let agent = "bench#/rows/[program=pipe&variant=agent]/ratio";
    let taskset = "/rows/[program=pipe&variant=taskset]/ratio";
    assert_eq!(figure(&format!("{agent} over {taskset} .3")), "0.763");
    assert_eq!(figure(&format!("{agent} against {taskset} .1%")), "-23.7");
    assert_eq!(figure(&format!("{agent} less {taskset} +.2")), "-2.57");
}

#[test]
fn each_value_is_compared_with_its_other() {
    let mut data = Data::default();
    let modes = |stock: [f64; 3], tandem: [f64; 3]| json!([{ "mode": "stock", "vms": stock }, { "mode": "tandem", "vms": tandem }]);
    data.insert(
        "work",
        json!({ "cells": [
            { "n": 1, "modes": modes([0.5, 0.25, 0.0], [1.0, 0.2, 0.3]) },
            { "n": 2, "modes": modes([0.1, 0.5, 0.5], [0.4, 0.5, 0.48]) },
            { "n": 3, "modes": [{ "mode": "stock", "vms": [null] }, { "mode": "tandem", "vms": [0.5] }] },
        ] }),
    );
    let figure = |cells: &str, vms: &str, end: &str| {
        let path = |mode: &str| format!("/cells/{cells}/modes/[mode={mode}]/vms/{vms}");
        let reference = format!("work#{} each over {} {end}", path("tandem"), path("stock"));
        let rendered = render(&format!("0<!-- {reference} -->"), &data);
        let problems: Vec<String> = rendered.problems.iter().map(Problem::to_string).collect();
        let text = rendered.text.split("<!--").next().unwrap().to_owned();
        (text, problems.join(""))
    };
    // 2, 0.8, 4, 1, 0.96; one of stock's is 0, and one was not measured.
    assert_eq!(figure("*", "*", "count").0, "5");
    assert_eq!(figure("*", "*", "geomean .3").0, "1.438");
    assert_eq!(figure("*", "*", "median .2").0, "1.00");
    assert_eq!(figure("*", "*", "below0.97").0, "2");
    assert_eq!(figure("*", "0", "max .0").0, "4");
    assert_eq!(figure("[n=1;2]", "1..", "min .1").0, "0.8");
    assert_eq!(figure("[n=1;2]", "1..", "count").0, "3");
    let why = |cells: &str, end: &str| figure(cells, "*", end).1;
    assert!(why("*", ".2").contains("each over|against|less path aggregate"));
    let uneven = "work#/cells/0/modes/0/vms/* each less /cells/2/modes/1/vms/* max .2";
    let rendered = render(&format!("0<!-- {uneven} -->"), &data);
    let text = rendered.problems[0].to_string();
    assert!(
        text.contains("3 values here and 1 at work#/cells/2"),
        "{text}"
    );
}

#[test]
fn formats_write_numbers_as_documents_do() {
    assert_eq!(figure("bench#/locks ,.0"), "225,491");
    assert_eq!(figure("bench#/locks .1/1e3"), "225.5");
    assert_eq!(figure("bench#/locks .0*10"), "2254914");
    assert_eq!(figure("bench#/locks si"), "225.5 k");
    assert_eq!(figure("bench#/rows/0/ratio sig3"), "8.27");
    assert_eq!(figure("bench#/rows/1/ratio +plain"), "+10.84");
    assert_eq!(figure("bench#/rows/2/part .1%"), "0.0");
    assert_eq!(figure("bench#/rows/2/part +.1%"), "+0.0");
}

const TABLE: &str = "\
<!-- data: bench#/rows by program variant
program = {agent/program}
agent = {agent/ratio .2}
taskset = {taskset/ratio .2} ({taskset/ratio over agent/ratio .1})
+ all {/rows/[variant=agent] count} | {/rows/[variant=agent]/ratio geomean .2}
-->

| program | agent |    taskset |
|---------|-------|------------|
| pipe    |  8.27 | 10.84 (1.3) |
| make    |  0.96 | 0.50 (0.5) |
| all 2   |  2.81 |            |

<!-- end -->
behind
";

#[test]
fn a_table_is_written_by_its_description() {
    let rendered = render(TABLE, &data());
    let problems: Vec<String> = rendered.problems.iter().map(Problem::to_string).collect();
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(
        problems[0].starts_with("8: the text says \"| program | agent |    taskset |\""),
        "{problems:?}"
    );
    assert!(
        rendered
            .text
            .contains("| pipe    |  8.27 | 10.84 (1.3) |\n"),
        "{}",
        rendered.text
    );
    assert!(rendered.text.ends_with("<!-- end -->\nbehind\n"));
    let again = render(&rendered.text, &data());
    assert_eq!(again.problems, []);
}

#[test]
fn rows_of_nested_lists_keep_what_stands_around_them() {
    let mut data = Data::default();
    let programs =
        json!([{ "name": "hog", "roles": [{ "role": "a", "n": 1 }, { "role": "b", "n": 2 }] }]);
    data.insert("kernel", programs);
    let table =
        "<!-- data: kernel#/ flat roles\nx = {name}\nrole = {role}\nn = {n}\n-->\n<!-- end -->\n";
    let text = render(table, &data).text;
    assert!(
        text.contains("| hog | a    | 1 |\n| hog | b    | 2 |\n"),
        "{text}"
    );
}

#[test]
fn a_part_in_brackets_is_left_out_where_a_figure_is_missing() {
    let table = |cell: &str| {
        format!("<!-- data: bench#/rows\na = {{program}}\nb = {cell}\n-->\n<!-- end -->\n")
    };
    let text = render(&table("{ratio .1}[ ({part .2}[{note}])]"), &data()).text;
    assert!(
        text.contains("| pipe | 8.3 (0.12) |\n| pipe |       10.8 |\n"),
        "{text}"
    );
    let text = render(&table("[{note}]"), &data());
    assert!(
        text.problems[0].to_string().contains("every row lacks"),
        "{text:?}"
    );
    let text = problems(&table("{part .2}")).join("");
    assert!(text.contains("nothing is at \"part\""), "{text}");
}

#[test]
fn a_table_without_an_end_is_an_error() {
    let text = problems("<!-- data: bench#/rows\na = {program}\n-->\n| a |\n").join("");
    assert!(text.contains("<!-- end -->"), "{text}");
}

#[test]
fn claims_stand_as_reproduce_shows_them() {
    let mut data = Data::default();
    let figure = |published: Option<f64>, low: Option<f64>, hit: bool| {
        json!({
            "name": "f", "published": published, "low": low, "high": null, "ours": 47.5,
            "ci95": 0.004, "in_band": hit,
        })
    };
    data.insert(
        "claims",
        json!([
            { "id": "a", "use": "fit", "figures": [figure(Some(96.0), Some(90.0), false),
                                                    figure(None, None, false)] },
            { "id": "b", "use": "check", "figures": [] },
        ]),
    );
    let text = render("<!-- data: claims by-claim -->\n<!-- end -->\n", &data).text;
    assert!(
        text.contains("| a     | fit   | f      | ≥ 96.0    | 47.5 |   0.00 | OUT           |"),
        "{text}"
    );
    assert!(
        text.contains("|       |       | f      |           |      |        | does not hold |"),
        "{text}"
    );
    assert!(
        text.contains("| b     | check |        |           |      |        | not covered   |"),
        "{text}"
    );
}

#[test]
fn of_several_readings_one_is_enough_and_remarks_stand_behind_names() {
    let mut data = Data::default();
    let figure = |name: &str, hit: bool, key: &str| json!({ "name": name, "published": 2.0, "low": 1.0, "high": 3.0, "ours": 2.5, "in_band": hit, key: "x" });
    data.insert(
        "claims",
        json!([{ "id": "a", "use": "check", "figures": [
            figure("gain", false, "reading_of"), figure("ratio", true, "reading_of"),
            figure("most", false, "out_of_reach"), figure("mean", false, "weak"),
        ] }]),
    );
    let text = render("<!-- data: claims by-claim -->\n<!-- end -->\n", &data).text;
    let row = |name: &str| text.lines().find(|line| line.contains(name)).unwrap();
    assert!(
        row("gain (one of several readings)").ends_with("| another reading is |"),
        "{text}"
    );
    assert!(
        row("ratio (one of several readings)").contains("| in band "),
        "{text}"
    );
    assert!(row("most (out of reach)").contains("| OUT "), "{text}");
    assert!(row("mean (weak)").contains("| OUT "), "{text}");
}
