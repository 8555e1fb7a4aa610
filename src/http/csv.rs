//! Tables as CSV (RFC 4180), for spreadsheets.

use actix_web::http::header::CONTENT_DISPOSITION;
use actix_web::{HttpResponse, HttpResponseBuilder};

/// The content type of a table.
pub const CSV: &str = "text/csv";

/// An answer without its table, which browsers save under this name.
pub fn answer(name: &str) -> HttpResponseBuilder {
    let mut answer = HttpResponse::Ok();
    answer
        .content_type("text/csv; charset=utf-8")
        .insert_header((CONTENT_DISPOSITION, format!("attachment; filename=\"{name}.csv\"")));
    answer
}

/// Adds a row to a table.
pub fn add_row<C: AsRef<str>>(table: &mut String, cells: impl IntoIterator<Item = C>) {
    for (at, cell) in cells.into_iter().enumerate() {
        if at > 0 {
            table.push(',');
        }
        add_cell(table, cell.as_ref());
    }
    table.push_str("\r\n");
}

fn add_cell(table: &mut String, cell: &str) {
    // A spreadsheet would run such a text from a shopper as a formula; an apostrophe makes it text.
    let defused = if cell.starts_with(['=', '+', '-', '@', '\t', '\r']) {
        "'"
    } else {
        ""
    };
    if cell.contains([',', '"', '\r', '\n']) {
        let cell = cell.replace('"', "\"\"");
        table.extend(["\"", defused, &cell, "\""]);
    } else {
        table.extend([defused, cell]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_quoted_where_it_must_be_and_never_a_formula() {
        let mut table = String::new();
        add_row(&mut table, ["plain", "a,b", "say \"a\"", "two\r\nlines", "", "名字"]);
        add_row(&mut table, ["=1+1", "+49", "-1", "@a", "\tx", "=a,b", "a=b"]);
        assert_eq!(
            table,
            "plain,\"a,b\",\"say \"\"a\"\"\",\"two\r\nlines\",,名字\r\n'=1+1,'+49,'-1,'@a,'\tx,\"'=a,b\",a=b\r\n"
        );
    }
}
