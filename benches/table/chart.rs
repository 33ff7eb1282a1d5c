//! A picture of all figures that have a title in common, with a bar for each.

use std::collections::HashSet;
use std::fmt::Write;

use crate::digits;
use crate::support::cores::Cores;
use crate::support::figure::{Bound, Figure, Line};

const WIDTH: f64 = 860.0;
/// Where the bars begin, and how long they can be.
const LEFT: f64 = 250.0;
const LONGEST: f64 = 400.0;
const ROW: f64 = 22.0;
/// Between a bar and its number, and of a digit.
const GAP: f64 = 8.0;
const DIGIT: f64 = 8.5;

/// Fewer bars say nothing that the table does not.
const FEWEST: usize = 3;

/// Light, and dark where the reader's system is.
const STYLE: &str = "text{font:13px sans-serif;fill:#24292f}.title{font-weight:bold}.page{fill:#fff}.bar{fill:#4c8bc9}\
.ours{fill:#2c6e49}.spread{stroke:#24292f;stroke-width:1.5}.bound{stroke:#c0392b;stroke-width:1.5;stroke-dasharray:4 3}\
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.page{fill:#0d1117}.bar{fill:#316dad}.ours{fill:#2e8b57}\
.spread{stroke:#e6edf3}.bound{stroke:#ff7b72}}";

pub(crate) fn draw<'a>(lines: impl IntoIterator<Item = &'a Line>) -> String {
    let lines: Vec<&Line> = lines.into_iter().collect();
    let mut seen = HashSet::new();
    let titles = lines
        .iter()
        .map(|line| (line.figure.title.as_str(), line.cores))
        .filter(|of| seen.insert(*of));
    let mut y = 10.0;
    let mut body = String::new();
    for (title, cores) in titles {
        let bars: Vec<&Line> = lines
            .iter()
            .copied()
            .filter(|line| line.figure.title == title && line.cores == cores)
            .collect();
        let on = match cores {
            Cores::Any => "",
            Cores::One => ", on one core",
            Cores::Two => ", on two cores",
        };
        if bars.len() >= FEWEST {
            y = picture(&mut body, y, &format!("{title}{on}"), &bars);
        }
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {y}\" width=\"{WIDTH}\" height=\"{y}\">\n\
         <style>{STYLE}</style>\n<rect class=\"page\" width=\"100%\" height=\"100%\"/>\n{body}</svg>\n"
    )
}

/// Answers where the next one can begin.
fn picture(body: &mut String, top: f64, title: &str, bars: &[&Line]) -> f64 {
    let of = |line: &Line| line.most.max(bound(&line.figure).unwrap_or(0.0));
    let most = bars
        .iter()
        .map(|line| of(line))
        .fold(f64::MIN_POSITIVE, f64::max);
    let x = |value: f64| LEFT + LONGEST * value.max(0.0) / most;
    let head = escape(&format!("{title}, {}", bars[0].figure.unit));
    let mut y = top + 18.0;
    let _ = writeln!(
        body,
        "<text class=\"title\" x=\"10\" y=\"{y}\">{head}</text>"
    );
    y += 8.0;
    for line in bars {
        let middle = y + ROW / 2.0;
        let width = x(line.median) - LEFT;
        let class = if line.figure.case.starts_with("fairlock") {
            "ours"
        } else {
            "bar"
        };
        let case = escape(&line.figure.case);
        let digits = digits(line);
        let number = format!("{:.digits$}", line.median);
        let beside = x(line.most) + GAP;
        let end = beside + DIGIT * number.len() as f64;
        // The line of the bound would go through the number, so that goes behind it.
        let covers = |at: &f64| (beside - GAP / 2.0..end).contains(at);
        let number_at = bound(&line.figure)
            .map(x)
            .filter(covers)
            .map_or(beside, |at| at + GAP);
        let _ = writeln!(
            body,
            "<text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{case}</text>\
             <rect class=\"{class}\" x=\"{LEFT}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{:.1}\"/>\
             <line class=\"spread\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{middle:.1}\" y2=\"{middle:.1}\"/>\
             <text x=\"{number_at:.1}\" y=\"{:.1}\">{number}</text>",
            LEFT - GAP,
            middle + 4.5,
            y + 3.0,
            ROW - 6.0,
            x(line.least),
            x(line.most),
            middle + 4.5,
        );
        if let Some(bound) = bound(&line.figure) {
            let at = x(bound);
            let bottom = y + ROW;
            let _ = writeln!(
                body,
                "<line class=\"bound\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{y:.1}\" y2=\"{bottom:.1}\"/>"
            );
        }
        y += ROW;
    }
    y + 14.0
}

fn bound(figure: &Figure) -> Option<f64> {
    match figure.bound {
        Bound::None => None,
        Bound::AtMost(bound) | Bound::AtLeast(bound) => Some(bound),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
