//! Charts in SVG: on a background of their own, so that they can be read on dark pages too, in colours that the
//! colour-blind tell apart (those of Okabe and Ito), with the name of each line beside it.

use std::fmt::Write;

/// What things that are not data are drawn in.
pub const INK: &str = "#24292f";
const FAINT: &str = "#d8dee4";
const GREY: &str = "#57606a";

/// A drawing.
pub struct Svg {
    width: f64,
    height: f64,
    body: String,
}

/// A place on the drawing.
pub type Place = (f64, f64);

/// Where a text stands to its place.
#[derive(Clone, Copy)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

impl Svg {
    /// An empty one.
    pub fn new(width: f64, height: f64) -> Svg {
        Svg { width, height, body: String::new() }
    }

    fn put(&mut self, element: std::fmt::Arguments) {
        let _ = writeln!(self.body, "{element}");
    }

    /// A text.
    pub fn text(&mut self, (x, y): Place, anchor: Anchor, style: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        self.put(format_args!(r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" {style}>{text}</text>"#));
    }

    fn stroke(&mut self, from: Place, to: Place, colour: &str) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.put(format_args!(r#"<path d="M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}" stroke="{colour}" fill="none"/>"#));
    }

    /// A line through all places.
    pub fn path(&mut self, places: &[Place], style: &str) {
        let mut path = String::new();
        for (i, (x, y)) in places.iter().enumerate() {
            let _ = write!(path, "{}{x:.1} {y:.1}", if i == 0 { "M" } else { "L" });
        }
        self.put(format_args!(r#"<path d="{path}" fill="none" stroke-linejoin="round" {style}/>"#));
    }

    /// A dot.
    fn dot(&mut self, (x, y): Place, colour: &str) {
        self.put(format_args!(r#"<circle cx="{x:.1}" cy="{y:.1}" r="3.5" fill="{colour}"/>"#));
    }

    /// A grey area.
    pub fn shade(&mut self, (x, y): Place, (right, bottom): Place) {
        let (width, height) = (right - x, bottom - y);
        self.put(format_args!(
            r##"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" fill="#f3f4f6"/>"##
        ));
    }

    /// The file.
    pub fn finish(self) -> String {
        let (width, height) = (self.width, self.height);
        format!(
            r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" font-family="Helvetica, Arial, sans-serif" font-size="13" fill="{INK}">
<rect x="0.5" y="0.5" width="{}" height="{}" rx="6" fill="#ffffff" stroke="{FAINT}"/>
{}</svg>
"##,
            width - 1.0,
            height - 1.0,
            self.body
        )
    }
}

/// An axis.
#[derive(Clone, Copy)]
pub struct Axis<'a> {
    pub name: &'a str,
    pub from: f64,
    pub to: f64,
    /// Between two marks; of a logarithmic one, between whose marks there is a factor of ten, nothing.
    pub step: Option<f64>,
}

impl Axis<'_> {
    fn share(&self, value: f64) -> f64 {
        match self.step {
            Some(_) => (value - self.from) / (self.to - self.from),
            None => (value / self.from).ln() / (self.to / self.from).ln(),
        }
    }

    fn marks(&self) -> Vec<f64> {
        let next = |mark: &f64| Some(self.step.map_or(mark * 10.0, |step| mark + step));
        std::iter::successors(Some(self.from), next).take_while(|mark| *mark <= self.to * 1.0001).collect()
    }
}

/// A value as a mark says it.
fn mark(value: f64) -> String {
    match value {
        _ if value >= 1e9 => format!("{}G", value / 1e9),
        _ if value >= 1e6 => format!("{}M", value / 1e6),
        _ if value >= 1e3 => format!("{}k", value / 1e3),
        // What adding steps has left of 0.1 + 0.2.
        _ => ((value * 1e6).round() / 1e6).to_string(),
    }
}

/// A chart within a drawing: the corners of its area, and its axes.
pub struct Chart<'a> {
    pub title: &'a str,
    pub left_top: Place,
    pub right_bottom: Place,
    pub x: Axis<'a>,
    pub y: Axis<'a>,
}

/// A line of a chart.
pub struct Series {
    pub name: String,
    pub colour: &'static str,
    pub points: Vec<Place>,
}

impl Chart<'_> {
    /// Where a point of the chart lies on the drawing. What lies beyond its area is drawn at its edge.
    pub fn place(&self, (x, y): Place) -> Place {
        let ((left, top), (right, bottom)) = (self.left_top, self.right_bottom);
        let (x, y) = (self.x.share(x).clamp(0.0, 1.0), self.y.share(y).clamp(0.0, 1.0));
        (left + x * (right - left), bottom - y * (bottom - top))
    }

    /// Title, axes and grid.
    pub fn draw(&self, svg: &mut Svg) {
        let ((left, top), (right, bottom)) = (self.left_top, self.right_bottom);
        let small = format!(r#"font-size="12" fill="{GREY}""#);
        for value in self.y.marks() {
            let (_, y) = self.place((self.x.from, value));
            svg.stroke((left, y), (right, y), FAINT);
            svg.text((left - 7.0, y + 4.0), Anchor::End, &small, &mark(value));
        }
        for value in self.x.marks() {
            let (x, _) = self.place((value, self.y.from));
            svg.stroke((x, bottom), (x, bottom + 5.0), GREY);
            svg.text((x, bottom + 19.0), Anchor::Middle, &small, &mark(value));
        }
        svg.stroke((left, bottom), (right, bottom), GREY);
        svg.text(((left + right) / 2.0, bottom + 38.0), Anchor::Middle, "", self.x.name);
        svg.text((left - 36.0, top - 12.0), Anchor::Start, "", self.y.name);
        svg.text((left - 36.0, top - 34.0), Anchor::Start, r#"font-size="15" font-weight="bold""#, self.title);
    }

    /// Lines through dots, the name of each to the right of its last.
    pub fn draw_series(&self, svg: &mut Svg, all: &[Series]) {
        let mut names: Vec<(Place, &Series)> = Vec::new();
        for series in all {
            let places: Vec<Place> =
                series.points.iter().filter(|point| !point.1.is_nan()).map(|point| self.place(*point)).collect();
            svg.path(&places, &format!(r#"stroke="{}" stroke-width="2""#, series.colour));
            for place in &places {
                svg.dot(*place, series.colour);
            }
            if let Some(last) = places.last() {
                names.push((*last, series));
            }
        }
        names.sort_by(|a, b| a.0.1.total_cmp(&b.0.1));
        // A name that would stand on another is pushed down.
        let mut free: Vec<Place> = Vec::new();
        for ((x, y), series) in names {
            let near = free.iter().filter(|other| (other.0 - x).abs() < 70.0).map(|other| other.1 + 14.0);
            let y = near.fold(y, f64::max);
            free.push((x, y));
            let style = format!(r#"fill="{}" font-weight="bold""#, series.colour);
            svg.text((x + 8.0, y + 4.0), Anchor::Start, &style, &series.name);
        }
    }
}
