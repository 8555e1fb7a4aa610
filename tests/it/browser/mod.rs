//! The pages of shoppers and operators, in a real browser.

mod accessibility;
mod accounts;
mod appearance;
mod attention;
mod changes;
mod console;
mod first_paint;
mod guards;
mod limits;
mod orders;
mod outage;
mod reference;
mod report;
mod sale_page;
mod shopping;
mod sign_in;
mod stages;
mod trouble;
mod variants;
